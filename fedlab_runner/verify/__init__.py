"""`fedlab-verify`: checks a bundle of `fedlab-report`, and computes chosen runs of it again on this machine."""
