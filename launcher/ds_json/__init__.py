"""A DeepSpeed JSON that a user has, and the keys of DeepSpeed that a spec passes on."""
