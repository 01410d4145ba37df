//! The TrainingJob API: types, schema, validation rules.
