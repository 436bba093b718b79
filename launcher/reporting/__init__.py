"""Reports of runs as pages: what is asked of the core, which draws them."""
