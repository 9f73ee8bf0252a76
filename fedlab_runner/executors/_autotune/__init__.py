"""Parts of the executor `auto`: the ways to train a cohort, the rule among them, measurements and their memory."""
