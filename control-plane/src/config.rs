//! Flags, the configuration file and the environment, and the settings that result from them.

pub mod args;
pub mod file;
pub mod settings;
