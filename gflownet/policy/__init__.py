"""Networks that map a batch of states to a GraphActionCategorical."""
