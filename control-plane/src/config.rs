//! Flags, the configuration file and the environment, and the settings made of them.

pub mod args;
pub mod file;
pub mod settings;
