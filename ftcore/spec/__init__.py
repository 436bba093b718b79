"""The contract both sides share: spec sections, resolved spec, run folder, errors, events. Standard library and yaml only."""
