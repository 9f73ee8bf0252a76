"""Decentralised FedProx: decentralised FedAvg without its term."""

from tests.helpers.identities import close
from tests.helpers.mixed import mixed
from tests.helpers.toy import algorithm, run


def test_without_its_term_it_is_decentralised_fedavg() -> None:
    plain = run(algorithm("dec_fedavg"), mixed(cohort=3), 3)
    close(plain, run(algorithm("dec_fedprox", mu=0.0), mixed(cohort=3), 3))
