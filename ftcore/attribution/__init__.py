"""Where each rank's time goes, and which rank the others wait for."""
