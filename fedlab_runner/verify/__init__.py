"""`fedlab-verify`: checks a bundle of `fedlab-report`, and computes some of its runs again on this machine."""
