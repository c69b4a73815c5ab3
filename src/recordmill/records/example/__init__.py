"""Encoder and decoder between RecordBatches and serialized Examples or SequenceExamples."""
