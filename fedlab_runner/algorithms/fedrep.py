"""FedRep (Collins et al., ICML 2021), Algorithm 1. https://arxiv.org/abs/2102.07078"""

from dataclasses import dataclass

from fedlab_runner.algorithms.shared.averaging import Params, Update, make_update
from fedlab_runner.algorithms.shared.averaging_server import AveragingServer
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class FedRep(AveragingServer):
    """FedAvg on the shared body. A client first trains its own head on the received body for `head_epochs`, then the
    body under the new head for as long as `local` says.

    The head is the part that stays at home. A late client gets its new head when its update arrives. The other fields
    are those of FedAvg.
    """

    head_epochs: int

    def __post_init__(self) -> None:
        at_least(0, head_epochs=self.head_epochs)
        super().__post_init__()

    def client_update(self, state: Params, cohort: Cohort) -> Update:
        x, head = state.params, cohort.at_home
        if self.head_epochs and head:  # h_i <- GRD(f_i(h_i, phi), h_i, alpha), tau times
            body = tuple(name for name in cohort.family.layout if name not in head)
            cohort.again(cohort.local.for_epochs(self.head_epochs)).train(x, frozen=body, counted=False)
        y = cohort.train(x, frozen=head)  # phi_i <- GRD(f_i(h_i, phi), phi, alpha)
        return make_update(cohort.family, x, y, self.late_policy)

    def operations(self, fed: Federation, local: float) -> float:
        """A step of the head needs the body's forward pass alone, which is a third of the operations."""
        acts = self.head_epochs if fed.home.acts else 0
        return local * (1 + acts / (fed.local.epochs or 1) / 3)
