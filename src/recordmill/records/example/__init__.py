"""The codec between RecordBatches and serialized Examples or SequenceExamples."""
