"""Beginnings of keys that metrics of several places have in common."""

COUNT_PREFIX = "late/staleness_count/"  # a metric key of a round: how many updates arrived with that staleness
TRUE_COSINE_PREFIX = "analysis/true_cosine/"  # cosine of this round's true update to that of the round which follows
FILE_ONLY = (COUNT_PREFIX, TRUE_COSINE_PREFIX)  # a chart each would be too many: pictures say it better
