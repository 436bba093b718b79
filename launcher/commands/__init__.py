"""The verbs of `ftlaunch`, one file each: parse, call, print. Each module's `command` is the click command; heavy imports wait inside it."""
