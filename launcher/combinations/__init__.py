"""What goes with what: one table, from which validation, the plan and docs/compatibility.md come."""
