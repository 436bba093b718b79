"""What `ftlaunch init` finds on this machine, asks, and writes."""
