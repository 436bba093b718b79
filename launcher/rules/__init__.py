"""Rules between keys of a spec: what each key's own schema can't say."""
