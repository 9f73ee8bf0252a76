"""Prefixes of metric keys that several modules use."""

COUNT_PREFIX = "late/staleness_count/"  # + staleness: how many updates arrived with that staleness in a round
TRUE_COSINE_PREFIX = "analysis/true_cosine/"  # + a later round: cosine between the true updates of the two rounds
FILE_ONLY = (COUNT_PREFIX, TRUE_COSINE_PREFIX)  # not sent to W&B: there would be too many charts
