"""The conformance kit: one check per rule of the plugin contract."""
