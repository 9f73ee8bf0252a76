"""Insides of the executor `auto`: measurements and what is remembered of them."""
