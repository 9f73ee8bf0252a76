"""Insides of the executor `ray`."""
