"""The local stack: a real Kafka, a real Redis and the stub LLM, on a machine with none of them."""
