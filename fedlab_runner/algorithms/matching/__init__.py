"""Matching of neurons: finds neurons of different models that do the same work, whatever their order."""
