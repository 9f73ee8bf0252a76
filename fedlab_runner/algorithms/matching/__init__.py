"""Matching of neurons: which neurons of different models do the same work, as their order means nothing."""
