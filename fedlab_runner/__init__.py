"""An experiment runner for federated, decentralised and hybrid learning."""

__version__ = "0.1.0"
