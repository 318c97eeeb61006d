mod complaints;
mod fit;
mod histories;
mod model;
mod order;
mod queue;
mod reconciler;
mod table;
