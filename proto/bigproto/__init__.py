"""BIG's wire contract. `v1/policy.proto` is the source; the code beside it is generated."""
