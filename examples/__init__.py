"""Handlers to begin from. Each runs as it is: `headrace worker all --handler examples.rag:handle`, from the folder that holds `examples`."""
