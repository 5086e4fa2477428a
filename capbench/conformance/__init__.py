"""The conformance kit: what the contract asks of a plugin, as checks that say how to fix what they find."""
