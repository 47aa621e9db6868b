"""The contracts of activations and aggregations under the names that a user's classes import."""

from gflownet.operations.neuron_code import Aggregation
from gflownet.operations.vocabulary import Activation, Parameter

__all__ = ["Activation", "Aggregation", "Parameter"]
