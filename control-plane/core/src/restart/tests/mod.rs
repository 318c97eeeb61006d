mod alive;
mod containers;
mod nodes;
mod pods;
mod random;
mod restarts;
mod takeover;
mod world;
