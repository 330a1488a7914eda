"""What the tests of the engine share: a bench of topics, engines in this process and in others, a proxy that cuts."""
