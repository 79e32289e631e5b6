// Search works in pages that are opened as files too, where a browser starts no workers:
// the script of a worker runs in a hidden frame instead, and nothing is fetched from elsewhere.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = frame.contentDocument.createElement("script");
      script.src = new URL(address, document.baseURI);
      script.onload = () => {
        this.ready = true;
        this.waiting.forEach((data) => this.postMessage(data));
      };
      frame.contentDocument.body.append(script);
    }

    postMessage(data) {
      if (this.ready) this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
      else this.waiting.push(data);
    }

    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
