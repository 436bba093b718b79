"""`ftlaunch profile`: the short run that is profiled, and what its traces say, for people."""
