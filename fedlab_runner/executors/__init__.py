"""How the local work of a cohort is carried out: one interface, several ways, one result."""
