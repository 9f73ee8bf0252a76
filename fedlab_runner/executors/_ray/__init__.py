"""Parts of the executor `ray`."""
