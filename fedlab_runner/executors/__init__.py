"""Executors: ways to carry out the local work of a cohort. All give the same result up to rounding."""
