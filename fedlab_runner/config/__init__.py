"""From a composed config to checked components: Hydra's loader, schema, secrets, run ids, error messages."""
