"""The contracts of activations and aggregations under the names that a user's classes import."""

from gflownet.operations.vocabulary import Activation, Aggregation, Parameter

__all__ = ["Activation", "Aggregation", "Parameter"]
