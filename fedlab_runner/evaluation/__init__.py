"""How good the models of a run are."""
