"""The settings of the service. `settings` has them all; `reference` shows them; `values` reads what people write."""
