"""The verbs `ftlaunch data ...`: questions to processes of the core, and their answers as text for a terminal."""
