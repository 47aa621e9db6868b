"""Neural-architecture search that samples computation graphs in proportion to their reward."""
