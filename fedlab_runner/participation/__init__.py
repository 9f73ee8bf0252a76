"""Who is asked to train at each round."""
