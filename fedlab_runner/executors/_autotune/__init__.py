"""Parts of the executor `auto`: measurements, and the cache that keeps them."""
