"""What each host must show before anything is started on it: asked of all hosts at once, compared, and told with the fix."""
