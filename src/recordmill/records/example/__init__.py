"""The codec: a RecordBatch and its Schema to serialized Examples and SequenceExamples, and back, column by column."""
