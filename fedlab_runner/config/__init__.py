"""From a composed config to checked components: Hydra's loader, the schema, secrets, run ids, error messages."""
