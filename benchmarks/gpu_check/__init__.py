"""`make gpu-check`, which proves this package on a GPU: what it computes, how fast and in what memory."""
