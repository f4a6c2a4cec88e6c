"""The threshold equation behind every map onto the simplex."""
