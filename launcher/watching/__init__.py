"""`ftlaunch watch`: what a run writes down, followed and shown while it runs. Only reads; nothing here is known to the run."""
